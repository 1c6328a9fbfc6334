import asyncio
import json

import pyarrow as pa
from dora import Node


async def work() -> None:
    node, kinds = Node(), []
    while True:
        event = await node.recv_async(timeout=30.0)
        kinds.append(None if event is None else event["type"])
        if event is None or event["type"] == "STOP":
            break
        if event["type"] == "INPUT":
            await asyncio.sleep(0.001)
            node.send_output("answer", pa.array([event["value"][0].as_py() * 2]))
    print(json.dumps({"inputs": kinds.count("INPUT"), "last": kinds[-2:]}))


asyncio.run(work())
