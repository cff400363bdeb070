"""The protocol of workers: one line of JSON per request and per answer.

It runs in a peer's environment, so it imports the standard library only.
"""

import json
import sys


def serve(hello, answer):
    output = sys.stdout
    sys.stdout = sys.stderr  # prints of the peer are not answers
    print(json.dumps(hello), file=output, flush=True)
    for line in sys.stdin:
        try:
            content = answer(**json.loads(line))
        except Exception as error:  # fails this request alone
            content = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(content), file=output, flush=True)
