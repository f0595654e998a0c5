# hash_file PATH: its sha256, as swap_file compares it.
sha256sum <"$1" | cut -d' ' -f1
