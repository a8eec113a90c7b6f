"""Corrections where torch behaves differently on fake tensors than in eager."""
