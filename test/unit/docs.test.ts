import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { describe, expect, it } from 'vitest';
import * as gpu from '../../lib/gpu/index.ts';
import * as api from '../../lib/index.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const filesBelow = (folder: string) =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((file) => join(folder, file));

const guides = filesBelow('docs').filter((file) => /^docs\/[\w-]+\.md$/.test(file));
const documents = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...guides];

// What a reader takes for granted in a block: an object of each kind, and the names of the package.
const givens = `
import type * as rdma from 'node-rdma';
declare global {
  const context: rdma.Context;
  const pd: rdma.ProtectionDomain;
  const cq: rdma.CompletionQueue;
  const qp: rdma.QueuePair;
  const mr: rdma.MemoryRegion;
  const endpoint: rdma.Endpoint;
  const remote: rdma.RemoteRegion;
  const requests: rdma.SendWr[];
  const signal: AbortSignal;
  const { openDevice, WcStatus, wcStatusName }: typeof rdma;
}`;

/** The blocks of a document in that language, each with the number of its first line. */
function blocks(path: string, language: string): { line: number; text: string }[] {
  const text = read(path);
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'gms'))].map((match) => ({
    line: text.slice(0, match.index).split('\n').length + 1,
    text: match[1] as string,
  }));
}

/** What the compiler says of modules that exist in memory only. */
function compile(modules: Map<string, string>): string[] {
  const options: ts.CompilerOptions = {
    target: ts.ScriptTarget.ES2022,
    lib: ['lib.es2023.d.ts', 'lib.esnext.disposable.d.ts'],
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    strict: true,
    exactOptionalPropertyTypes: true,
    noEmit: true,
    skipLibCheck: true,
    allowImportingTsExtensions: true,
    types: ['node'],
    paths: {
      'node-rdma': [join(root, 'lib/index.ts')],
      'node-rdma/gpu': [join(root, 'lib/gpu/index.ts')],
      'node-rdma/vm': [join(root, 'lib/vm/index.ts')],
    },
  };
  const host = ts.createCompilerHost(options);
  const { readFile, fileExists, getSourceFile } = host;
  host.getCurrentDirectory = () => root;
  host.fileExists = (path) => modules.has(path) || fileExists(path);
  host.readFile = (path) => modules.get(path) ?? readFile(path);
  host.getSourceFile = (path, language, ...rest) => {
    const text = modules.get(path);
    return text === undefined
      ? getSourceFile(path, language, ...rest)
      : ts.createSourceFile(path, text, { ...(language as object), impliedNodeFormat: ts.ModuleKind.ESNext } as never);
  };
  const program = ts.createProgram([...modules.keys()], options, host);
  // Of these only: the package's own code is checked elsewhere.
  const files = [...modules.keys()].map((path) => program.getSourceFile(path) as ts.SourceFile);
  const diagnostics = files.flatMap((file) => ts.getPreEmitDiagnostics(program, file));
  return diagnostics.map(({ file, start, messageText }) => {
    const line = file ? file.getLineAndCharacterOfPosition(start ?? 0).line + 1 : 0;
    return `${file?.fileName.slice(root.length)}:${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
}

/** The anchor that a heading of a document gets. */
const anchorOf = (heading: string) =>
  heading
    .toLowerCase()
    .replace(/[^\w\- ]/g, '')
    .replaceAll(' ', '-');

describe('the documents', () => {
  it('have code that compiles', () => {
    const modules = new Map([[join(root, 'docs/givens.ts'), givens]]);
    for (const path of documents) {
      for (const { line, text } of blocks(path, 'ts')) {
        // As many lines in front as the block has in its document, so that a message names the right one.
        modules.set(join(root, `${path}.${line}.ts`), `${'\n'.repeat(line - 1)}${text}\nexport {};\n`);
      }
    }
    expect(modules.size).toBeGreaterThan(5);
    expect(compile(modules)).toEqual([]);
  });

  it('have links that lead somewhere', () => {
    const broken = documents.flatMap((path) =>
      [...read(path).matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)/g)]
        .filter(([, file, anchor]) => {
          const target = file ? join(dirname(path), file) : path;
          if (!existsSync(join(root, target))) return true;
          if (anchor === undefined) return false;
          return ![...read(target).matchAll(/^#+ (.*)$/gm)].some(
            ([, heading]) => anchorOf(heading as string) === anchor,
          );
        })
        .map(([link]) => `${path}: ${link}`),
    );
    expect(broken).toEqual([]);
  });

  it('place each behaviour that pyverbs 44 passes on Soft-RoCE', () => {
    const tests = [...read('docs/pyverbs.md').matchAll(/^\| `test_\w+`: `(test_\w+)` /gm)].map(([, name]) => name);
    expect(tests).toHaveLength(86);
    expect(new Set(tests).size).toBe(86);
  });

  it('name every export that exists at run time', () => {
    const text = documents.map(read).join('\n');
    const unnamed = Object.keys({ ...api, ...gpu }).filter((name) => !new RegExp(`\\b${name}\\b`).test(text));
    expect(unnamed).toEqual([]);
  });

  it('say what every environment variable does that the code reads', () => {
    const sources = [...filesBelow('lib'), ...filesBelow('native')].filter((file) => /\.(ts|cc|h)$/.test(file));
    const names = sources.flatMap((file) =>
      [...read(file).matchAll(/\benv\.([A-Z][A-Z0-9_]+)\b|\b(NODE_RDMA_[A-Z0-9_]+)\b/g)].map(
        (match) => match[1] ?? match[2],
      ),
    );
    expect(names).toContain('NODE_RDMA_DEVICE');
    expect(names).toContain('NODE_RDMA_LIBIBVERBS');
    const readme = read('README.md');
    expect([...new Set(names)].filter((name) => !new RegExp(`\\b${name}\\b`).test(readme))).toEqual([]);
  });
});
