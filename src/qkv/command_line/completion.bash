# Completion of qkv for bash: source <(qkv completion bash)
_qkv() {
    local cur="${COMP_WORDS[COMP_CWORD]}" at=1 command flag="" words="" files="" i
    COMPREPLY=()
    if [[ "${COMP_WORDS[1]}" == help ]] && ((COMP_CWORD > 1)); then at=2; fi
    command="${COMP_WORDS[at]}"
    if ((COMP_CWORD == at)); then
        COMPREPLY=($(compgen -W "@commands@ --help --version" -- "$cur"))
        return
    fi
    if [[ "$cur" == "=" ]]; then cur=""; fi
    case "$command" in
@families@
    esac
    if [[ -n "$words" ]]; then
        if ((COMP_CWORD == at + 1)); then
            COMPREPLY=($(compgen -W "$words --help" -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[at + 1]}"
        words=""
    fi
    # The flag whose value is at the cursor: the previous word, or the last flag that takes
    # several values.
    for ((i = COMP_CWORD - 1; i > at; i--)); do
        if [[ "${COMP_WORDS[i]}" == -* ]]; then
            flag="${COMP_WORDS[i]}"
            break
        fi
    done
    if ((i < COMP_CWORD - 1)) && [[ "${COMP_WORDS[i + 1]}" != "=" ]]; then
        case "$command $flag" in
            @several@) ;;
            *) flag="" ;;
        esac
    fi
    if [[ "$cur" == -* ]]; then
        case "$command" in
@flags@
        esac
    else
        case "$command $flag" in
@values@
        esac
    fi
    if [[ -n "$words" ]]; then COMPREPLY=($(compgen -W "$words" -- "$cur")); fi
    if [[ -n "$files" ]]; then
        if type compopt > /dev/null 2>&1; then compopt -o filenames 2> /dev/null; fi
        local IFS=$'\n'
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -F _qkv qkv
