"""The machine: its cores, memory and clocks, and libraries that may be missing."""
