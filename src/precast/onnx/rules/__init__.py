"""Translations of operators to ONNX, one file for each family."""
