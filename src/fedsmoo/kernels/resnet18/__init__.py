"""Gradients of ResNet-18-GN on 32x32 images for many clients at once."""
