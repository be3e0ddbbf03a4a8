def documented_items(path, main, inline): return []
def chats(*a): return []
def shuffled(c): return c
HELDOUT=[]
