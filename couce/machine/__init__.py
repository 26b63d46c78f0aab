"""What depends on the machine: cores, memory, devices, times and optional libraries."""
