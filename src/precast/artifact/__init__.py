"""The file format: one zip with a manifest, weights and native code. Never imports torch."""
