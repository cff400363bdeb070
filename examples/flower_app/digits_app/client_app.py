"""The client: trains on its own images and sends the model back, as without privacy."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import arrays, fit, partition, record

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = partition(context.node_config["partition-id"], context.node_config["num-partitions"])
    model = fit(arrays(message.content["arrays"]), x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": record(model), "metrics": metrics}), reply_to=message)
