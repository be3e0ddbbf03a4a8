// Empty: what naga writes includes this header of Metal's, and uses nothing of it.
