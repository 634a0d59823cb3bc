"""Strict parser of ``config.pbtxt``: protobuf text format and Triton's further checks.

The messages are those of ``model_config.proto`` that deployment files use. Source: https://github.com/triton-inference-server/common.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_F = descriptor_pb2.FieldDescriptorProto
_INT32, _INT64, _UINT64, _STRING = _F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT64, _F.TYPE_STRING
#: Fields by message: name, number, type (or name of a message or enum), whether repeated.
_MESSAGES: dict[str, list[tuple[str, int, Any, bool]]] = {
    "ModelInput": [("name", 1, _STRING, False), ("data_type", 2, "DataType", False),
                   ("dims", 4, _INT64, True)],
    "ModelOutput": [("name", 1, _STRING, False), ("data_type", 2, "DataType", False),
                    ("dims", 3, _INT64, True)],
    "ModelInstanceGroup": [("name", 1, _STRING, False), ("count", 2, _INT32, False),
                           ("kind", 4, "Kind", False)],
    "ModelDynamicBatching": [("preferred_batch_size", 1, _INT32, True),
                             ("max_queue_delay_microseconds", 2, _UINT64, False)],
    "ModelParameter": [("string_value", 1, _STRING, False)],
    "Parameters": [("key", 1, _STRING, False), ("value", 2, "ModelParameter", False)],
    "Accelerator": [("name", 1, _STRING, False)],
    "ExecutionAccelerators": [("gpu_execution_accelerator", 1, "Accelerator", True),
                              ("cpu_execution_accelerator", 2, "Accelerator", True)],
    "ModelOptimizationPolicy": [("execution_accelerators", 5, "ExecutionAccelerators", False)],
    "ModelConfig": [
        ("name", 1, _STRING, False), ("max_batch_size", 4, _INT32, False),
        ("input", 5, "ModelInput", True), ("output", 6, "ModelOutput", True),
        ("instance_group", 7, "ModelInstanceGroup", True),
        ("dynamic_batching", 11, "ModelDynamicBatching", False),
        ("optimization", 12, "ModelOptimizationPolicy", False),
        ("parameters", 14, "Parameters", True), ("backend", 17, _STRING, False),
    ],
}  # fmt: skip
_ENUMS = {
    "DataType": {"TYPE_INVALID": 0, "TYPE_UINT8": 2, "TYPE_INT8": 6, "TYPE_FP32": 11},
    "Kind": {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2},
}


def _config_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package="t", syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type = _F.TYPE_ENUM if kind in _ENUMS else _F.TYPE_MESSAGE
                added.type_name = f".t.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))


CONFIG = _config_class()


def parse_config(text: str, folder: str) -> Any:
    """Return a configuration.

    Args:
        text: Content of the file.
        folder: Name of the folder of the file.

    Raises:
        ParseError: The text is invalid.
        ValueError: A server would not load it.
    """
    config = text_format.Parse(text, CONFIG())
    if config.name != folder:
        raise ValueError(f"it is named '{config.name}', its folder '{folder}'")
    if config.max_batch_size < 1:
        raise ValueError("it takes no batches, but has a batcher")
    tensors = [*config.input, *config.output]
    if any(not t.name or not t.data_type or not t.dims for t in tensors):
        raise ValueError("a tensor has no name, type or size")
    return config
