# note_image RECORD REFERENCE: notes that fleetctl brought this image here.
brought "$1" "$2"
