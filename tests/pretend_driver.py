"""A stand-in for NVIDIA's driver below `pynvml`: the values of one H200, any of which a test may change.

It answers by the function names of `pynvml`; a function that is not here, or that raises, is one this driver lacks.
"""

# ruff: noqa: N802  (the names are NVIDIA's)
from __future__ import annotations

from types import SimpleNamespace as Values

UUID = "b0fd4a3e-6a46-9f4e-4c0e-0a4f7c6f2f11"
PCI = "00000000:1B:00.0"


class PretendDriver:
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def __init__(self):
        self.asked = []
        self.missing = set()
        self.clocks = {1: 1980, 2: 3201}
        self.power_mw = 312_400
        self.temperature = 45
        self.reasons = 0
        self.fields = {74: 5_000_000, 75: 0}
        self.policies = {0: 7_000_000, 1: 0}
        self.samples = {}
        self.processes = []
        self.used_bytes = 1_000_000
        self.mig = [0, 0]
        self.slice = False
        self.compute_mode = 0
        self.virtualization = 1

    def __getattr__(self, name):
        if name.startswith("_") or name in self.__dict__.get("missing", ()):
            raise AttributeError(name)
        answer = getattr(type(self), f"answer_{name.removeprefix('nvml')}", None)
        if answer is None:
            raise AttributeError(name)

        def ask(*arguments):
            self.asked.append((name, arguments))
            return answer(self, *arguments)

        return ask

    def answer_Init(self):
        return None

    def answer_SystemGetDriverVersion(self):
        return "580.95.05"

    def answer_SystemGetCudaDriverVersion(self):
        return 13000

    def answer_DeviceGetCount(self):
        return 1

    def answer_DeviceGetHandleByIndex(self, index):
        return "board"

    def answer_DeviceGetHandleByUUID(self, uuid):
        wanted = f"MIG-{UUID}" if self.slice else f"GPU-{UUID}"
        if uuid != wanted:
            raise LookupError("Not Found")
        return "slice" if self.slice else "board"

    def answer_DeviceGetHandleByPciBusId(self, name):
        if name != PCI:
            raise LookupError("Not Found")
        return "board"

    def answer_DeviceIsMigDeviceHandle(self, handle):
        return handle == "slice"

    def answer_DeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return "board"

    def answer_DeviceGetName(self, handle):
        return "NVIDIA H200"

    def answer_DeviceGetIndex(self, handle):
        return 0

    def answer_DeviceGetClockInfo(self, handle, clock):
        return self._of_board(handle, self.clocks[clock])

    def answer_DeviceGetMaxClockInfo(self, handle, clock):
        return {1: 1980, 2: 3201}[clock]

    def answer_DeviceGetPowerUsage(self, handle):
        return self._of_board(handle, self.power_mw)

    def answer_DeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def answer_DeviceGetTemperature(self, handle, sensor):
        return self.temperature

    def answer_DeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def answer_DeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.reasons

    def answer_DeviceGetFieldValues(self, handle, ids):
        return [
            Values(fieldId=id, nvmlReturn=0 if id in self.fields else 3, value=Values(ullVal=self.fields.get(id, 0)))
            for id in ids
        ]

    def answer_DeviceGetViolationStatus(self, handle, policy):
        return Values(referenceTime=0, violationTime=self.policies[policy])

    def answer_DeviceGetSamples(self, handle, kind, after):
        notes = [note for note in self.samples[kind] if note[0] > after]
        if not notes:
            raise LookupError("Not Found")
        return 1, [Values(timeStamp=when, sampleValue=Values(uiVal=value)) for when, value in notes]

    def answer_DeviceGetMigMode(self, handle):
        return self.mig

    def answer_DeviceGetEccMode(self, handle):
        return [1, 1]

    def answer_DeviceGetPersistenceMode(self, handle):
        return 1

    def answer_DeviceGetComputeMode(self, handle):
        return self.compute_mode

    def answer_DeviceGetVirtualizationMode(self, handle):
        return self.virtualization

    def answer_DeviceGetMemoryInfo(self, handle, version=None):
        return Values(total=150_000_000_000, used=self.used_bytes + (0 if version else 700_000_000))

    def answer_DeviceGetComputeRunningProcesses(self, handle):
        return [Values(pid=pid, usedGpuMemory=used) for pid, used in self.processes]

    def answer_DeviceGetGraphicsRunningProcesses(self, handle):
        return []

    @staticmethod
    def _of_board(handle, value):
        if handle != "board":
            raise LookupError("Not Supported")
        return value
