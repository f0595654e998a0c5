# model_headers MODEL CAP: the header of every safetensors file and every index, gzipped and in base64 like all names.
# Of the weights nothing is read. Links are followed, as model hubs store shards; hidden folders hold downloads that did
# not end. A header or index of more than CAP bytes is named and not printed.
model=$1 cap=$2
cd "$model"
# A file that cannot be read prints less than it promised, which the reader sees: one bad file must not hide the others.
find -L . -name '.?*' -prune -o \( -name '*.safetensors' -o -name '*.safetensors.index.json' -o -name '*.bin' \
	-o -name '*.pt' -o -name '*.gguf' \) -exec sh -c '
	name() { printf %s "${1#./}" | base64 -w 0; }
	pack() { gzip -nc | base64 -w 0; }
	cap=$1
	shift
	for file do
		if [ ! -e "$file" ]; then
			case $file in *.safetensors*) printf "dangling %s\n" "$(name "$file")" ;; esac
			continue
		fi
		if [ ! -f "$file" ]; then continue; fi
		size=$(stat -L -c %s "$file")
		case $file in
		*.safetensors)
			length=
			if [ "$size" -ge 8 ]; then length=$(od -An -t u8 -N 8 "$file" | tr -d " "); fi
			printf "shard %s %s %s " "$(name "$file")" "$size" "${length:--}"
			# A file that is none begins with a number of up to twenty digits, more than the shell can compare.
			case $length in
			"" | ????????????*) printf "%s\n" - ;;
			*)
				if [ "$length" -le "$cap" ] && [ "$length" -le $((size - 8)) ]; then
					head -c $((length + 8)) "$file" | tail -c +9 | pack
					echo
				else
					printf "%s\n" -
				fi
				;;
			esac
			;;
		*.json)
			printf "index %s " "$(name "$file")"
			if [ "$size" -le "$cap" ]; then pack <"$file"; else printf %s -; fi
			echo
			;;
		*) printf "other %s\n" "$(name "$file")" ;;
		esac
	done
' sh "$cap" {} + || true
