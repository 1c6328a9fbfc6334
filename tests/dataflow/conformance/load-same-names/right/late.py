LATE = "right"
