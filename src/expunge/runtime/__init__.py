"""What every part runs on: progress, groups of processes, memory, durable files, strict JSON."""
