import { Argument, type Command } from 'commander';
import { subcommand } from './frame.ts';
import { print } from './output.ts';

/** The subcommand `completion`, for all of `program`. */
export function completionCommand(program: Command): Command {
  return subcommand('completion', 'Print what makes a shell complete this command: source <(node-rdma completion bash)')
    .addArgument(new Argument('<shell>', 'which shell').choices(['bash', 'zsh']))
    .action((shell: string) => print(completionScript(program, shell === 'zsh')));
}

/** What can follow a (sub)command: its subcommands, and its options. */
function candidates(command: Command): string[] {
  const subcommands = command.commands.map((sub) => sub.name());
  const options = command.options.filter(({ hidden }) => !hidden).map(({ long, short }) => long ?? short!);
  return [...subcommands, ...options, '--help'];
}

/** Each (sub)command with the words that lead to it. */
function paths(command: Command, words: string[] = []): [string, Command][] {
  return [[words.join(' '), command], ...command.commands.flatMap((sub) => paths(sub, [...words, sub.name()]))];
}

/** Options that take one of a few values, by option. */
function choices(command: Command): [string, readonly string[]][] {
  const own = command.options
    .filter(({ argChoices }) => argChoices !== undefined)
    .map(({ long, argChoices }): [string, readonly string[]] => [long!, argChoices!]);
  return [...own, ...command.commands.flatMap(choices)];
}

function completionScript(program: Command, isZsh: boolean): string {
  const all = paths(program);
  const cases = all.map(([path, command]) => `    '${path}') words='${candidates(command).join(' ')}' ;;`);
  const values = new Map(choices(program));
  const valueCases = [...values].map(([option, words]) => `    ${option}) words='${words.join(' ')}' ;;`);
  const known = all.map(([path]) => `'${path}'`).join('|');
  return `${isZsh ? 'autoload -U +X bashcompinit && bashcompinit\n' : ''}_node_rdma() {
  local word path='' words='' current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}"
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "\${path:+$path }$word" in
    ${known}) path="\${path:+$path }$word" ;;
    vm\\ *) return ;;
    esac
  done
  case "$path" in
${cases.join('\n')}
  esac
  case "$previous" in
${valueCases.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _node_rdma node-rdma`;
}
