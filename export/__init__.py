"""Export - checkpoint to a plain ONNX model, parity, certificate, quantisation. Imports couce only."""
