"""What makes gradients on a CPU faster: the order of images in memory, and the library of products."""
