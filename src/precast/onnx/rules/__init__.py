"""How operators are said in ONNX, one file for each family."""
