"""Front ends: from other people's texts to modules of the instruction set. Pure, like all of wis."""
