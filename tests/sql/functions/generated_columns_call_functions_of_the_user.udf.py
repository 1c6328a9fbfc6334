import json

from headrace import udf


@udf
def parse_line(line: str) -> str:
    at, method, path, code = line.split(" ")
    return json.dumps({"at": at, "method": method, "path": path, "code": int(code)})
