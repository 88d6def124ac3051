"""A server of the kind that agents start for each session: JSON-RPC on standard input and output.

python embedding_server.py MODEL, then lines such as {"id": 1, "method": "embed", "params": {"text": "hello"}}.
"""

import json
import sys

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
for line in sys.stdin:
    request = json.loads(line)
    vector = model.encode(request["params"]["text"], show_progress_bar=False)
    print(json.dumps({"id": request["id"], "result": [round(float(number), 4) for number in vector[:4]]}), flush=True)
