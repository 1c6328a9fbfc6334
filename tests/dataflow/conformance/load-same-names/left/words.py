WORD = "left"
