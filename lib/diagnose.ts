/** Says what this machine has and lacks for RDMA, and what to type. It reads files, and asks the addon where there is one. */
import { accessSync, constants, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, isAbsolute, join } from 'node:path';
import { object } from './args.ts';
import { binding } from './native/binding.ts';

/** One thing that was looked at. */
export interface Finding {
  /** What was looked at, such as `'library libibverbs'`. Stable. */
  name: string;
  /** False for a warning or an error. */
  ok: boolean;
  /** `'error'`: verbs cannot be used. `'warning'`: some things will not work. `'ok'`: nothing to do. */
  level: 'ok' | 'warning' | 'error';
  /** What was found. */
  detail: string;
  /** The line to type on this distribution. Absent when there is nothing to do, or no line that would do it. */
  fix?: string;
}

/** What {@link diagnose} found. */
export interface Diagnosis {
  /** No finding is an error: a device can be opened. */
  ok: boolean;
  /** In the order in which things build on each other: mend the first error first. */
  findings: Finding[];
}

/** What {@link diagnose} looks at. All of it defaults to this process and machine. */
export interface DiagnoseOptions {
  /** The folder that holds the files of the machine. Default `/`. */
  root?: string;
  /** The environment, for `SYSFS_PATH`, `LD_LIBRARY_PATH` and `NODE_RDMA_LIBIBVERBS` and their like. */
  env?: NodeJS.ProcessEnv;
  /** As `process.platform`. */
  platform?: string;
  /** As `process.arch`. */
  arch?: string;
  /** Whether the process is root, to whom `sudo` need not be said. */
  isRoot?: boolean;
  /** Throws when the process may not read and write the file. */
  access?: (path: string) => void;
  /**
   * Loads the addon, whose answers count for more than files do. Default: that of this package, or none with another
   * `root`: then only files are judged.
   *
   * @internal
   */
  addon?: () => Addon;
}

/** The part of the addon that is asked. */
interface Addon {
  loadState(): { available: boolean; path: string; error: string };
  getDeviceList(): { name: string }[];
}

// Modules that make RDMA devices, and the one whose hardware they belong to, where that is another.
const drivers: Record<string, string> = {
  mlx5_ib: 'mlx5_core',
  mlx4_ib: 'mlx4_core',
  irdma: 'ice',
  bnxt_re: 'bnxt_en',
  hns_roce_hw_v2: 'hns3',
  qedr: 'qede',
  iw_cxgb4: 'cxgb4',
  efa: 'efa',
  erdma: 'erdma',
  mana_ib: 'mana',
  ionic_rdma: 'ionic',
  rdma_rxe: 'rdma_rxe',
  siw: 'siw',
};

// Below this a few thousand small buffers, or one large one, cannot be registered. Debian's default is 8 MiB.
const memlockFloor = 64 * 1024 * 1024;
const CAP_IPC_LOCK = 14n;

type Distribution = 'debian' | 'redhat' | 'suse' | 'alpine' | 'arch';

const install: Record<Distribution, { library: string; modules: string }> = {
  debian: {
    library: 'apt-get install -y libibverbs1 librdmacm1 ibverbs-providers',
    // Ubuntu keeps rarer modules apart; Debian's cloud kernels have none.
    modules: 'apt-get install -y linux-image-$(dpkg --print-architecture)',
  },
  redhat: {
    library: 'dnf install -y libibverbs librdmacm',
    modules: 'dnf install -y kernel-modules-extra-$(uname -r)',
  },
  suse: { library: 'zypper install -y libibverbs1 librdmacm1', modules: 'zypper install -y kernel-default' },
  alpine: { library: 'apk add rdma-core', modules: 'apk add linux-lts' },
  arch: { library: 'pacman -S --noconfirm rdma-core', modules: 'pacman -S --noconfirm linux' },
};

/**
 * Looks at platform, library, providers, devices, device nodes, kernel modules and limits. It opens no device.
 *
 * @param options - what to look at instead of this process and machine
 * @returns the findings; nothing that is missing makes it throw
 */
export function diagnose(options: DiagnoseOptions = {}): Diagnosis {
  const findings = new Examination(object(options, 'options')).findings();
  return { ok: !findings.some(({ level }) => level === 'error'), findings };
}

/**
 * Whether verbs can be used here: the platform is supported, the library is installed, and there is a device that this
 * process may open. {@link diagnose} says why not.
 *
 * @param options - what to look at instead of this process and machine
 */
export function isAvailable(options: DiagnoseOptions = {}): boolean {
  return diagnose(options).ok;
}

interface Device {
  name: string;
  uverbs: string | undefined;
  driver: string;
}

class Examination {
  readonly #options: DiagnoseOptions;
  readonly #root: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #sysfs: string;
  readonly #access: (path: string) => void;
  readonly #sudo: string;
  readonly #container: string | undefined;
  /** What the addon said of libibverbs, and the devices that it lists; undefined where there is no addon to ask. */
  readonly #loadState: ReturnType<Addon['loadState']> | undefined;
  readonly #listed: string[] | undefined;

  constructor(options: DiagnoseOptions) {
    this.#options = options;
    this.#root = options.root ?? '/';
    this.#env = options.env ?? process.env;
    // As ibv_get_sysfs_path does.
    this.#sysfs = (this.#env.SYSFS_PATH || '/sys').replace(/\/+$/, '');
    this.#access = options.access ?? ((path) => accessSync(path, constants.R_OK | constants.W_OK));
    this.#sudo = (options.isRoot ?? process.getuid?.() === 0) ? '' : 'sudo ';
    this.#container = this.#findContainer();
    try {
      const load = options.addon ?? (options.root === undefined ? binding : undefined);
      const addon = load?.();
      this.#loadState = addon?.loadState();
      this.#listed = this.#loadState?.available ? addon?.getDeviceList().map(({ name }) => name) : undefined;
    } catch (cause) {
      // No addon for this machine, or a kernel without RDMA.
      const message = cause instanceof Error ? cause.message : String(cause);
      this.#loadState ??= { available: false, path: '', error: message };
    }
  }

  findings(): Finding[] {
    const platform = this.#platform();
    if (!platform.ok) return [platform];
    const devices = this.#devices();
    const findings = [
      platform,
      this.#library('libibverbs', 'libibverbs.so.1', 'error', 'nothing works without it'),
      this.#library('librdmacm', 'librdmacm.so.1', 'warning', 'the connection manager will not work'),
      this.#providers(devices),
      this.#module('ib_uverbs', 'error', 'programs cannot reach any device'),
      this.#module('rdma_ucm', 'warning', 'the connection manager will not work'),
      this.#deviceList(devices),
      ...devices.map((device) => this.#deviceNode(device)),
      this.#memlock(),
    ];
    if (this.#container !== undefined) {
      findings.push(ok('container', `${this.#container}: modules are loaded, and limits raised, from outside`));
    }
    return findings;
  }

  #platform(): Finding {
    const platform = this.#options.platform ?? process.platform;
    const arch = this.#options.arch ?? process.arch;
    if (platform === 'linux' && ['x64', 'arm64'].includes(arch)) return ok('platform', `${platform}-${arch}`);
    return error('platform', `${platform}-${arch}: verbs are supported on linux-x64 and linux-arm64`);
  }

  #library(name: 'libibverbs' | 'librdmacm', file: string, level: 'error' | 'warning', loss: string): Finding {
    const title = `library ${name}`;
    const variable = `NODE_RDMA_${name.toUpperCase()}`;
    // What the dynamic loader said counts for more than where a file lies.
    const state = name === 'libibverbs' ? this.#loadState : undefined;
    if (state !== undefined && !state.available) {
      const fix = this.#env[variable] ? `unset ${variable}` : this.#installLine('library');
      return finding(title, level, `${state.error || `${state.path} cannot be loaded`}: ${loss}`, fix);
    }
    const named = this.#env[variable];
    if (named && isAbsolute(named)) {
      if (state !== undefined || this.#exists(named)) return ok(title, `${named}, named by ${variable}`);
      return finding(title, level, `${variable} names ${named}, which does not exist: ${loss}`, `unset ${variable}`);
    }
    const path = this.#findLibrary(named || file);
    if (path !== undefined || state !== undefined) return ok(title, path ?? state?.path ?? file);
    return finding(title, level, `no ${named || file}: ${loss}`, this.#installLine('library'));
  }

  #providers(devices: Device[]): Finding {
    const configured = this.#list('/etc/libibverbs.d').filter((file) => file.endsWith('.driver'));
    const names = configured.flatMap((file) =>
      [...(this.#read(join('/etc/libibverbs.d', file)) ?? '').matchAll(/^\s*driver\s+(\S+)/gm)].map(([, name]) =>
        basename(name!),
      ),
    );
    const folders = this.#libraryFolders().map((folder) => join(folder, 'libibverbs'));
    const files = folders.flatMap((folder) => this.#list(folder)).filter((file) => /-rdmav\d+\.so$/.test(file));
    const present = new Set(files.map((file) => file.replace(/^lib/, '').replace(/-rdmav\d+\.so$/, '')));
    const usable = names.filter((name) => present.has(name));
    const fix = this.#installLine('library');
    const lacking = devices.filter(({ driver }) => driver !== '' && !usable.includes(driver));
    if (usable.length === 0) {
      return finding(
        'providers',
        devices.length > 0 ? 'error' : 'warning',
        'none: libibverbs will not see any device',
        fix,
      );
    }
    if (lacking.length > 0) {
      const missing = lacking.map(({ name, driver }) => `${driver} for ${name}`).join(', ');
      return finding('providers', 'warning', `no provider ${missing}: libibverbs will not see it`, fix);
    }
    return ok('providers', usable.sort().join(', '));
  }

  #module(name: string, level: 'error' | 'warning', loss: string): Finding {
    const title = `module ${name}`;
    if (this.#isLoaded(name)) return ok(title, 'loaded');
    if (level === 'error' && this.#listed?.length) return ok(title, 'not found, yet libibverbs lists devices');
    if (this.#isInstalled(name)) return finding(title, level, `not loaded: ${loss}`, this.#onHost(`modprobe ${name}`));
    return finding(title, level, `not part of this kernel: ${loss}`, this.#modulesLine());
  }

  #deviceList(devices: Device[]): Finding {
    if (devices.length > 0 && this.#listed?.length === 0) {
      const names = devices.map(({ name }) => name).join(', ');
      return error('devices', `the kernel has ${names}, but libibverbs lists none`, this.#installLine('library'));
    }
    if (devices.length === 0 && this.#listed?.length) return ok('devices', this.#listed.join(', '));
    if (devices.length > 0) {
      return ok(
        'devices',
        devices.map(({ name, driver }) => (driver === '' ? name : `${name} (${driver})`)).join(', '),
      );
    }
    // Hardware whose network driver is there, but not its RDMA driver, comes first.
    const idle = Object.entries(drivers).find(
      ([module, core]) =>
        module !== core && this.#isLoaded(core) && !this.#isLoaded(module) && this.#isInstalled(module),
    );
    if (idle !== undefined) {
      const [module, core] = idle;
      return error('devices', `none, though ${core} has hardware`, this.#onHost(`modprobe ${module}`));
    }
    const detail = `none in ${this.#sysfs}/class/infiniband`;
    if (!this.#isInstalled('rdma_rxe') && !this.#isLoaded('rdma_rxe')) {
      const vm = '"node-rdma vm COMMAND" runs a command in a VM whose kernel has it';
      return error('devices', `${detail}, and this kernel has no Soft-RoCE; ${vm}`, this.#modulesLine());
    }
    const netdev = this.#list(`${this.#sysfs}/class/net`).find((name) => name !== 'lo') ?? 'lo';
    return error(
      'devices',
      `${detail}; Soft-RoCE makes one of any network interface`,
      this.#onHost(`sh -c 'modprobe rdma_rxe && rdma link add rxe0 type rxe netdev ${netdev}'`),
    );
  }

  #deviceNode({ name, uverbs }: Device): Finding {
    const title = `device ${name}`;
    if (uverbs === undefined) {
      return error(title, 'the kernel offers no uverbs for it', this.#onHost('modprobe ib_uverbs'));
    }
    const path = `/dev/infiniband/${uverbs}`;
    try {
      this.#access(this.#at(path));
      return ok(title, path);
    } catch (cause) {
      const { code } = cause as NodeJS.ErrnoException;
      if (code === 'ENOENT') {
        const fix = this.#container === undefined ? `${this.#sudo}udevadm trigger` : `docker run --device=${path} ...`;
        return error(title, `${path} does not exist${this.#container === undefined ? '' : ' in this container'}`, fix);
      }
      return error(title, `${path}: ${code}, this process may not open it`, `${this.#sudo}chmod a+rw ${path}`);
    }
  }

  #memlock(): Finding {
    const soft = /^Max locked memory\s+(\S+)/m.exec(this.#read('/proc/self/limits') ?? '')?.[1];
    if (soft === undefined) return finding('memlock', 'warning', 'the limit on locked memory cannot be read');
    if (soft === 'unlimited') return ok('memlock', 'unlimited');
    const text = `${Math.floor(Number(soft) / 1024)} KiB can be locked, and so registered`;
    const capabilities = /^CapEff:\s*([0-9a-f]+)/m.exec(this.#read('/proc/self/status') ?? '')?.[1] ?? '0';
    if ((BigInt(`0x${capabilities}`) >> CAP_IPC_LOCK) & 1n) return ok('memlock', 'unlimited by CAP_IPC_LOCK');
    if (Number(soft) >= memlockFloor) return ok('memlock', text);
    const fix =
      this.#container === undefined
        ? `echo '* - memlock unlimited' | ${this.#sudo}tee /etc/security/limits.d/rdma.conf  # then log in again`
        : 'docker run --ulimit memlock=-1 ...';
    return finding('memlock', 'warning', text, fix);
  }

  #devices(): Device[] {
    const uverbs = new Map<string, string>();
    for (const name of this.#list(`${this.#sysfs}/class/infiniband_verbs`)) {
      const device = this.#read(`${this.#sysfs}/class/infiniband_verbs/${name}/ibdev`)?.trim();
      if (device !== undefined) uverbs.set(device, name);
    }
    return this.#list(`${this.#sysfs}/class/infiniband`).map((name) => ({
      name,
      uverbs: uverbs.get(name),
      driver: this.#providerOf(name),
    }));
  }

  /** The provider's name of a device, or '' when its name does not tell. */
  #providerOf(device: string): string {
    const modalias = this.#read(`${this.#sysfs}/class/infiniband/${device}/device/modalias`);
    if (modalias?.includes('v000015B3')) return /d0000(100[0-9A-F]|1010|6[0-9A-F]{3})/.test(modalias) ? 'mlx4' : 'mlx5';
    return /^(rxe|siw)\d*$/.exec(device)?.[1] ?? '';
  }

  #findLibrary(file: string): string | undefined {
    return this.#libraryFolders()
      .map((folder) => join(folder, file))
      .find((path) => this.#exists(path));
  }

  /** Where the dynamic loader looks, as far as text files tell; its cache is made from the same ones. */
  #libraryFolders(): string[] {
    const named = (this.#env.LD_LIBRARY_PATH ?? '').split(':').filter((folder) => folder !== '');
    const standard = ['/lib64', '/usr/lib64', '/lib', '/usr/lib', '/usr/local/lib'];
    const folders = [...named, ...this.#loaderConfig('/etc/ld.so.conf'), ...standard];
    // On a merged /usr both names lead to the same place.
    return [...new Set(folders.map((folder) => folder.replace(/^\/lib/, '/usr/lib'))), '/lib', '/lib64'];
  }

  #loaderConfig(path: string): string[] {
    return (this.#read(path) ?? '').split('\n').flatMap((line) => {
      const text = line.replace(/#.*/, '').trim();
      const pattern = /^include\s+(.*)/.exec(text)?.[1];
      if (pattern === undefined) return text === '' ? [] : [text];
      const folder = dirname(isAbsolute(pattern) ? pattern : join(dirname(path), pattern));
      return this.#list(folder)
        .filter((file) => file.endsWith('.conf'))
        .flatMap((file) => this.#loaderConfig(join(folder, file)));
    });
  }

  #isLoaded(module: string): boolean {
    // /sys/module has the built-in ones too.
    return this.#exists(`${this.#sysfs}/module/${module}`) || this.#hasLine('/proc/modules', `${module} `);
  }

  #hasLine(path: string, start: string): boolean {
    return (this.#read(path) ?? '').split('\n').some((line) => line.startsWith(start));
  }

  /** Whether modprobe would find it. In a container that is the host's affair, and the benefit of the doubt is given. */
  #isInstalled(module: string): boolean {
    if (this.#container !== undefined) return true;
    const release = this.#read('/proc/sys/kernel/osrelease')?.trim() ?? '';
    return (this.#read(`/lib/modules/${release}/modules.dep`) ?? '').includes(`/${module}.ko`);
  }

  #findContainer(): string | undefined {
    if (this.#env.KUBERNETES_SERVICE_HOST) return 'Kubernetes';
    if (this.#exists('/.dockerenv')) return 'Docker';
    if (this.#exists('/run/.containerenv')) return 'Podman';
    return /docker|kubepods|containerd|lxc/.exec(this.#read('/proc/1/cgroup') ?? '')?.[0];
  }

  #distribution(): Distribution | undefined {
    const text = this.#read('/etc/os-release') ?? '';
    const ids = [...text.matchAll(/^ID(?:_LIKE)?="?([^"\n]*)"?$/gm)].flatMap(([, value]) => value!.split(/\s+/));
    const known: [RegExp, Distribution][] = [
      [/^(debian|ubuntu)$/, 'debian'],
      [/^(fedora|rhel|centos)$/, 'redhat'],
      [/^(suse|opensuse.*|sles)$/, 'suse'],
      [/^alpine$/, 'alpine'],
      [/^arch$/, 'arch'],
    ];
    return known.find(([pattern]) => ids.some((id) => pattern.test(id)))?.[1];
  }

  #isUbuntu(): boolean {
    return /^ID=ubuntu$/m.test(this.#read('/etc/os-release') ?? '');
  }

  #installLine(what: 'library' | 'modules'): string | undefined {
    const distribution = this.#distribution();
    return distribution === undefined ? undefined : `${this.#sudo}${install[distribution][what]}`;
  }

  #modulesLine(): string | undefined {
    if (this.#isUbuntu()) return `${this.#sudo}apt-get install -y linux-modules-extra-$(uname -r)`;
    return this.#installLine('modules');
  }

  #onHost(command: string): string {
    return this.#container === undefined ? `${this.#sudo}${command}` : `sudo ${command}  # on the host`;
  }

  #at(path: string): string {
    return join(this.#root, path);
  }

  #read(path: string): string | undefined {
    try {
      return readFileSync(this.#at(path), 'utf8');
    } catch {
      return undefined;
    }
  }

  #list(path: string): string[] {
    try {
      return readdirSync(this.#at(path)).sort();
    } catch {
      return [];
    }
  }

  #exists(path: string): boolean {
    try {
      accessSync(this.#at(path), constants.F_OK);
      return true;
    } catch {
      return false;
    }
  }
}

function finding(name: string, level: Finding['level'], detail: string, fix?: string): Finding {
  return { name, ok: level === 'ok', level, detail, ...(fix !== undefined && { fix }) };
}

const ok = (name: string, detail: string) => finding(name, 'ok', detail);
const error = (name: string, detail: string, fix?: string) => finding(name, 'error', detail, fix);
