"""Small modules that every package uses: files, terminal, cores, memory, thread stacks, private
parts of torch.
"""
