"""What surrounds a launch on the host: operands, descriptors, recording, Triton's warm-up."""
