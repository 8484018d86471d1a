import { Argument, type Command } from 'commander';
import { run, subcommand } from './frame.ts';
import { print } from './output.ts';

/** The subcommand `completion`, for all of `program`. */
export function completionCommand(program: Command): Command {
  return subcommand('completion', 'Print what makes a shell complete this command: source <(node-rdma completion bash)')
    .addArgument(new Argument('<shell>', 'which shell').choices(['bash', 'zsh']))
    .action((shell: string) => run(() => print(completionScript(program, shell === 'zsh'))));
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
  const cases = all.map(([path, command]) => `    '${path}') offer='${candidates(command).join(' ')}' ;;`);
  const values = new Map(choices(program));
  const valueCases = [...values].map(([option, words]) => `    ${option}) offer='${words.join(' ')}' ;;`);
  const known = all.map(([path]) => `'${path}'`).join('|');
  // Arrays of zsh begin at 1, and its `path` and `words` are its own.
  const shell = isZsh
    ? {
        before: `"\${(@)words[2,CURRENT-1]}"`,
        previous: `"\${words[CURRENT-1]}"`,
        other: '_default; return',
        end: `  compadd -- \${=offer} || _default\n}\ncompdef _node_rdma node-rdma`,
      }
    : {
        before: `"\${COMP_WORDS[@]:1:COMP_CWORD-1}"`,
        previous: `"\${COMP_WORDS[COMP_CWORD-1]}"`,
        other: 'return',
        end: `  COMPREPLY=($(compgen -W "$offer" -- "\${COMP_WORDS[COMP_CWORD]}"))\n}\ncomplete -o default -F _node_rdma node-rdma`,
      };
  return `_node_rdma() {
  local word name='' offer=''
  for word in ${shell.before}; do
    case "\${name:+$name }$word" in
    ${known}) name="\${name:+$name }$word" ;;
    vm\\ *) ${shell.other} ;;
    esac
  done
  case "$name" in
${cases.join('\n')}
  esac
  case ${shell.previous} in
${valueCases.join('\n')}
  esac
${shell.end}`;
}
