mod t{}
