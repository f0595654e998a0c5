"""The inventory, typed: machines, instances, allocation, lints. Pure, and the lowest layer but errors."""

import os

# pydantic looks through every installed package for plugins before it validates anything, which costs a command
# more than the validation; nothing of another package has a say in what an inventory may hold anyway.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
