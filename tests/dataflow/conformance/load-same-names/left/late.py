LATE = "left"
