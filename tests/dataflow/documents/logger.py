class Operator:
    pass
