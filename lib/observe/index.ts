/**
 * What operators look at: devices and their GIDs.
 *
 * @module
 */

export { type DeviceDescription, describeDevices, type PortDescription } from './devices.ts';
