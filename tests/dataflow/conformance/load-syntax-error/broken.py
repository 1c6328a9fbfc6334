class Operator
    pass
