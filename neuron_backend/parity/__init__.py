"""Parity with the stock model: probes of logits, trees and on-device sampling, and drift of distributions."""
