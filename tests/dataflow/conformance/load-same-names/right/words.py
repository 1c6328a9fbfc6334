WORD = "right"
