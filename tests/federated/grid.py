"""A Flower grid in this process: named nodes, and a function that answers for them."""

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

MODEL = {
    "weight": np.zeros((3, 2), np.float32),
    "bias": np.zeros(3, np.float32),
    "seen": np.array([7]),
}


def record(model):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def shifted(arrays, by):
    """A client's model: every trained coordinate moved by ``by``."""
    return {
        name: a.numpy() + (0 if name == "seen" else a.numpy().dtype.type(by))
        for name, a in arrays.items()
    }


class LocalGrid(Grid):
    """``answer(name, message)`` is a client's model; None for a client that drops out."""

    def __init__(self, names, answer=lambda name, message: shifted(message.content["arrays"], 0.1)):
        self.names, self.answer = {100 + i: name for i, name in enumerate(names)}, answer
        self.asked = []  # the names, round by round
        self.rounds = []

    def get_node_ids(self):
        return list(self.names)

    def get_nodes(self):
        return [NodeInfo(node_id=i, public_key=name.encode()) for i, name in self.names.items()]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.asked.append([self.names[m.metadata.dst_node_id] for m in messages])
        self.rounds.append({m.content["config"]["server-round"] for m in messages})
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(i)
            model = self.answer(self.names[message.metadata.dst_node_id], message)
            if model is None:
                replies.append(Message(Error(code=5, reason="node unavailable"), reply_to=message))
                continue
            metrics = MetricRecord({"num-examples": 10 + i, "train_loss": 0.5})
            arrays = model if isinstance(model, ArrayRecord) else record(model)
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            replies.append(Message(content, reply_to=message))
        return replies

    run = property(lambda self: None)

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run
