"""What workers share: a line of JSON is asked, a line of JSON is said. Runs in a peer's environment, so the standard
library is all it may use."""

import json
import sys


def serve(hello, answer):
    say = sys.stdout
    sys.stdout = sys.stderr  # what others print is no answer
    print(json.dumps(hello), file=say, flush=True)
    for line in sys.stdin:
        try:
            said = answer(**json.loads(line))
        except Exception as error:  # a peer that fails has failed at this one thing
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=say, flush=True)
