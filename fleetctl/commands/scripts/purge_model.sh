# purge_model MODEL: the copies that fleetctl brought are gone, and MODEL if it is a link to one of them.
model=$1
folder="$(dirname "$model")/.$(basename "$model").fleetctl"
if [ -L "$model" ]; then
	case $(readlink -f "$model") in
	"$(readlink -f "$folder")"/*) rm -f "$model" ;;
	esac
fi
# A folder that stood there before fleetctl came (found.*) is somebody's.
find "$folder" -mindepth 1 -maxdepth 1 ! -name 'found.*' -exec rm -rf {} + 2>/dev/null || true
rmdir "$folder" 2>/dev/null || true
