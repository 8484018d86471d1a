import { qemuProgram } from './packages.ts';

/** How the guest's instructions are run: by the processor, or by QEMU's translation of them. */
export type Accelerator = 'kvm' | 'tcg';

/** Everything QEMU is told. */
export interface Machine {
  accel: Accelerator;
  /** The kernel image. */
  image: string;
  initrd: string;
  /** In QEMU's notation: `2G`, `512M`. */
  memory: string;
  cpus: number;
  /** A folder of the host that the guest may write to. */
  out?: string | undefined;
}

/**
 * The descriptors on which QEMU is given one end of a socket pair each. Sockets rather than named pipes: no file to
 * leave behind, and their end reaches the guest when this process dies.
 */
export const portFds = { tty: 3, control: 4, request: 5, stdin: 6, stdout: 7, stderr: 8 };

/** The command line that starts QEMU. */
export function qemuCommand(machine: Machine): string[] {
  const arm = process.arch === 'arm64';
  const console = arm ? 'ttyAMA0' : 'ttyS0';
  const args = [
    // The kernel kills QEMU when the thread that started it dies, however that happens.
    ...['setpriv', '--pdeathsig', 'KILL', '--', qemuProgram ?? ''],
    ...['-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none'],
    ...['-M', arm ? 'virt' : 'q35', '-cpu', cpu(machine.accel, arm)],
    ...['-smp', String(machine.cpus), '-m', machine.memory],
    ...['-accel', machine.accel === 'kvm' ? 'kvm' : 'tcg,thread=multi'],
    ...['-kernel', machine.image, '-initrd', machine.initrd, '-append', kernelParameters(machine.accel, console)],
    ...['-chardev', 'stdio,id=console,signal=off', '-serial', 'chardev:console'],
    // The first virtio device, so that the guest finds its ports as vport0pN.
    ...['-device', 'virtio-serial-pci'],
  ];
  let port = 0;
  for (const [name, fd] of Object.entries(portFds)) {
    const device = name === 'tty' ? 'virtconsole' : 'virtserialport';
    args.push('-chardev', `socket,id=${name},fd=${fd}`, '-device', `${device},chardev=${name},nr=${port++}`);
  }
  args.push(...share('hostroot', '/', true));
  if (machine.out !== undefined) args.push(...share('out', machine.out, false));
  return args;
}

/** Emulated, `rep movsb` moves byte by byte: without ERMS the guest and its programs copy by words, and are a tenth faster. */
function cpu(accel: Accelerator, arm: boolean): string {
  return accel === 'tcg' && !arm ? 'max,-erms' : 'max';
}

function kernelParameters(accel: Accelerator, console: string): string {
  // Warnings have level 4 and must reach the console. An oops ends the guest, rather than leaving it half alive.
  const parameters = [`console=${console}`, 'loglevel=5', 'oops=panic', 'panic=-1', 'cryptomgr.notests'];
  if (accel === 'tcg') {
    // Time as the guest sees it stops whenever the host is busy: the watchdogs would bark at that.
    parameters.push('nowatchdog', 'rcupdate.rcu_cpu_stall_suppress=1', 'mitigations=off');
  }
  return parameters.join(' ');
}

function share(tag: string, path: string, readonly: boolean): string[] {
  // remap keeps inode numbers apart when the folder spans several file systems of the host.
  const options = `local,id=${tag},security_model=none,multidevs=remap,readonly=${readonly ? 'on' : 'off'}`;
  return [
    ...['-fsdev', `${options},path=${path.replaceAll(',', ',,')}`],
    ...['-device', `virtio-9p-pci,fsdev=${tag},mount_tag=${tag}`],
  ];
}
