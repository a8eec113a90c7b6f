"""Plain values, torch's own and operators as JSON."""

from torch._ops import HigherOrderOperator, OpOverload

from precast.artifact.constants import Kind
from precast.export.serialize.names import target_from_json, target_to_json
from precast.graph.constants import torch_codec

CONSTANTS = torch_codec(operator=Kind((OpOverload, HigherOrderOperator), target_to_json, target_from_json))
constant_to_json, constant_from_json = CONSTANTS.write, CONSTANTS.read
