import { Argument, type Command, type Option } from 'commander';
import { run, subcommand } from './frame.ts';
import { print } from './output.ts';

/** The subcommand `completion`, for all of `program`. */
export function completionCommand(program: Command): Command {
  return subcommand('completion', 'Print what makes a shell complete this command: source <(node-rdma completion bash)')
    .addArgument(new Argument('<shell>', 'which shell').choices(['bash', 'zsh']))
    .action((shell: string) => run(() => print(completionScript(program, shell === 'zsh'))));
}

/** What the first argument may be, where that is one of a few words. */
const argumentWords = ({ registeredArguments: [first] }: Command): readonly string[] => first?.argChoices ?? [];

/** The words that can follow a (sub)command, other than options. */
const wordsOf = (command: Command) => [...command.commands.map((sub) => sub.name()), ...argumentWords(command)];

const shownOptions = (command: Command) => command.options.filter(({ hidden }) => !hidden);
const namesOf = ({ long, short }: Option) => [long, short].filter((name) => name !== undefined);

/** Each (sub)command with the words that lead to it. A word for its first argument leads on to itself, less those words. */
function paths(command: Command, words: string[] = []): { path: string; command: Command; offer: string[] }[] {
  const own = { path: words.join(' '), command, offer: wordsOf(command) };
  const chosen = argumentWords(command).map((word) => ({ path: [...words, word].join(' '), command, offer: [] }));
  return [own, ...chosen, ...command.commands.flatMap((sub) => paths(sub, [...words, sub.name()]))];
}

/** What is offered behind an option of a (sub)command that takes a value. */
function valueCases(command: Command, other: string, words: string[] = []): string[] {
  const name = words.join(' ');
  const patterns = (option: Option) =>
    namesOf(option).flatMap((flag) => [
      `'${name} ${flag}'`,
      ...(argumentWords(command).length > 0 ? [`'${name} '*' ${flag}'`] : []),
    ]);
  const own = shownOptions(command).filter(({ required }) => required);
  const chosen = own.filter(({ argChoices }) => argChoices !== undefined);
  const free = own.filter(({ argChoices }) => argChoices === undefined);
  return [
    ...chosen.map((option) => `${patterns(option).join('|')}) offer='${option.argChoices!.join(' ')}' ;;`),
    // A file, as often as not.
    ...(free.length > 0 ? [`${free.flatMap(patterns).join('|')}) ${other} ;;`] : []),
    ...command.commands.flatMap((sub) => valueCases(sub, other, [...words, sub.name()])),
  ];
}

function completionScript(program: Command, isZsh: boolean): string {
  const all = paths(program);
  const cases = all.map(({ path, command, offer }) => {
    const flags = [...shownOptions(command).map((option) => namesOf(option)[0]), '--help'];
    return `'${path}') offer='${offer.join(' ')}' flags='${flags.join(' ')}' ;;`;
  });
  const known = all.map(({ path }) => `'${path}'`).join('|');
  // Arrays of zsh begin at 1, and its `path`, `words` and `options` are its own.
  const shell = isZsh
    ? {
        before: `"\${(@)words[2,CURRENT-1]}"`,
        previous: `\${words[CURRENT-1]}`,
        current: `\${words[CURRENT]}`,
        other: '_default; return',
        end: `  [[ -n $offer ]] && compadd -- \${=offer} || _default\n}\ncompdef _node_rdma node-rdma`,
      }
    : {
        before: `"\${COMP_WORDS[@]:1:COMP_CWORD-1}"`,
        previous: `\${COMP_WORDS[COMP_CWORD-1]}`,
        current: `\${COMP_WORDS[COMP_CWORD]}`,
        other: 'COMPREPLY=(); return',
        // Where it offers nothing, bash completes names of files.
        end: `  COMPREPLY=($(compgen -W "$offer" -- "\${COMP_WORDS[COMP_CWORD]}"))\n}\ncomplete -o default -F _node_rdma node-rdma`,
      };
  const indented = (lines: string[]) => lines.map((line) => `    ${line}`).join('\n');
  return `_node_rdma() {
  local word name='' offer='' flags=''
  for word in ${shell.before}; do
    case "\${name:+$name }$word" in
    ${known}) name="\${name:+$name }$word" ;;
    vm\\ *) ${shell.other} ;;
    esac
  done
  case "$name" in
${indented(cases)}
  esac
  case "${shell.current}" in
    -*) offer=$flags ;;
  esac
  case "$name ${shell.previous}" in
${indented(valueCases(program, shell.other))}
  esac
${shell.end}`;
}
