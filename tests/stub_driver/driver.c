/* A stand-in for libcuda.so.1 and libnvidia-ml.so.1: one device whose memory is files in $CUDA_STUB_DRIVER.
 *
 * It lets machines without a GPU run NVIDIA's own Python packages, and so every line of ours that calls them, down to
 * the C arguments that arrive here. It knows only the calls that trims makes. Holders of memory are counted by the
 * kernel: a process that keeps a file alive has a shared lock on it. Copies are done at once; trims.testing.fake_cuda
 * covers how a driver defers them, and most of what can go wrong. Some calls can be made to fail (`refused`).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "warp.h"

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, CONTEXT_IS_DESTROYED = 709, NOT_SUPPORTED = 801 };
#define GRANULARITY (2ul << 20)
#define CONTEXT_BYTES (16ul << 20)
#define TOTAL_BYTES (512ul << 20)
#define MOST 4096

typedef struct { unsigned char bytes[16]; } Uuid;
typedef struct { char reserved[64]; } IpcHandle;
typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *win32; unsigned char flags[8]; } Property;
typedef struct { Location location; int flags; } Access;

/* What this process holds: by handle or address, the descriptor whose lock keeps the memory. */
typedef struct { u64 name; size_t size; int fd; int opens; char handle[64]; char path[512]; } Held;
static Held held[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Contexts of a thread: the last is current. One that was destroyed stays where it is, as in the driver. */
typedef unsigned long Context;
#define DEEPEST 16
#define PRIMARY 0x1234ul
static _Thread_local Context stack[DEEPEST];
static _Thread_local int depth;
static Context made[DEEPEST]; /* beside the primary one; they take no memory */
static int context_fd = -1, retained, numbers;
static const Uuid UUID = {{0xab, 0xcd, 0xef, 0x01, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}};

static const char *folder(void) { return getenv("CUDA_STUB_DRIVER"); }

static Held *find(u64 name) {
  for (int i = 0; i < MOST; i++)
    if (held[i].name == name && name) return &held[i];
  return NULL;
}

static Held *add(u64 name, size_t size, int fd) {
  for (int i = 0; i < MOST; i++)
    if (!held[i].name) {
      memset(&held[i], 0, sizeof held[i]);
      held[i].name = name, held[i].size = size, held[i].fd = fd;
      return &held[i];
    }
  abort();
}

static void drop(Held *it) {
  if (it->fd >= 0) close(it->fd);
  it->name = 0;
}

static size_t used(void) {
  size_t sum = 0;
  DIR *all = opendir(folder());
  for (struct dirent *each; all && (each = readdir(all));) {
    char path[1024];
    struct stat status;
    if (strncmp(each->d_name, "memory.", 7)) continue;
    snprintf(path, sizeof path, "%s/%s", folder(), each->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path); /* no process holds it any more */
    else if (fstat(fd, &status) == 0) sum += status.st_size;
    close(fd);
  }
  if (all) closedir(all);
  return sum;
}

/* Memory of the device: a file with a holder. Callers have the lock; another process's may overtake, which no test does. */
static int take(const char *kind, size_t size, char *path, size_t room) {
  if (used() + size > TOTAL_BYTES) return -1;
  snprintf(path, room, "%s/memory.%s.%d.%d", folder(), kind, getpid(), ++numbers);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || flock(fd, LOCK_SH) || ftruncate(fd, size)) abort();
  return fd;
}

static Context current(void) { return depth ? stack[depth - 1] : 0; }

static int alive(Context context) {
  if (context == PRIMARY) return context_fd >= 0;
  for (int i = 0; i < DEEPEST; i++)
    if (context && made[i] == context) return 1;
  return 0;
}

/* What a test has a call answer, while there is a file fail.NAME with the number; the name is that of the function. */
static int refused(const char *name) {
  char path[1024];
  int status = OK;
  snprintf(path, sizeof path, "%s/fail.%s", folder(), name);
  FILE *file = fopen(path, "re");
  if (!file) return OK;
  if (fscanf(file, "%d", &status) != 1) abort();
  return fclose(file), status;
}

#define MAY_FAIL do { int status_ = refused(__func__); if (status_) return status_; } while (0)
#define NEED_CONTEXT if (!alive(current())) return current() ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT
#define LOCKED(work) ({ pthread_mutex_lock(&lock); int status_ = (work); pthread_mutex_unlock(&lock); status_; })

/* -- devices ------------------------------------------------------------------------------------------------------ */

int cuInit(unsigned flags) { MAY_FAIL; return flags ? INVALID_VALUE : folder() ? OK : NO_DEVICE; }
int cuGetErrorName(int status, const char **name) {
  static const struct { int status; const char *name; } KNOWN[] = {
    {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"}, {999, "CUDA_ERROR_UNKNOWN"},
  };
  for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
    if (KNOWN[i].status == status) return *name = KNOWN[i].name, OK;
  return *name = NULL, INVALID_VALUE;
}
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int number) { return *device = number, number ? INVALID_DEVICE : OK; }
int cuDeviceGetUuid_v2(Uuid *uuid, int device) { return *uuid = UUID, device ? INVALID_DEVICE : OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = TOTAL_BYTES, device ? INVALID_DEVICE : OK; }
int cuDeviceCanAccessPeer(int *can, int one, int other) { return *can = one != other, OK; }
int cuDeviceGetName(char *name, int room, int device) {
  return snprintf(name, room, "Stub Device"), device ? INVALID_DEVICE : OK;
}

/* VMM, its descriptors, IPC, read-only registration: see CUdevice_attribute. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 102 || attribute == 103 || attribute == 110 || attribute == 113 || attribute == 125;
  return device ? INVALID_DEVICE : OK;
}

int cuDevicePrimaryCtxRetain(Context *context, int device) {
  char path[1024];
  MAY_FAIL;
  pthread_mutex_lock(&lock);
  if (retained++ == 0) context_fd = take("context", CONTEXT_BYTES, path, sizeof path);
  pthread_mutex_unlock(&lock);
  return *context = PRIMARY, device ? INVALID_DEVICE : context_fd < 0 ? OUT_OF_MEMORY : OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  pthread_mutex_lock(&lock);
  if (--retained == 0) close(context_fd), context_fd = -1;
  pthread_mutex_unlock(&lock);
  return device ? INVALID_DEVICE : OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  return *flags = 0, *active = context_fd >= 0, device ? INVALID_DEVICE : OK;
}

int cuCtxGetCurrent(Context *context) { return *context = current(), OK; }

int cuCtxPushCurrent_v2(Context context) {
  MAY_FAIL;
  if (!alive(context) || depth == DEEPEST) return INVALID_CONTEXT;
  return stack[depth++] = context, OK;
}

int cuCtxPopCurrent_v2(Context *context) {
  if (!depth) return INVALID_CONTEXT;
  return *context = stack[--depth], OK;
}

/* Instead of what is current; none at all is like a pop. */
int cuCtxSetCurrent(Context context) {
  if (context && !alive(context)) return INVALID_CONTEXT;
  if (depth) depth--;
  return context ? cuCtxPushCurrent_v2(context) : OK;
}

static int add_context(Context *context) {
  for (int i = 0; i < DEEPEST; i++)
    if (!made[i]) return *context = made[i] = PRIMARY + ++numbers, OK;
  return OUT_OF_MEMORY;
}
int cuCtxCreate_v4(Context *context, void *parameters, unsigned flags, int device) {
  if (parameters || flags || device) return INVALID_VALUE;
  return LOCKED(add_context(context)) ? OUT_OF_MEMORY : cuCtxPushCurrent_v2(*context);
}
int cuCtxCreate_v2(Context *context, unsigned flags, int device) { return cuCtxCreate_v4(context, NULL, flags, device); }

int cuCtxDestroy_v2(Context context) {
  if (context == PRIMARY || !alive(context)) return INVALID_CONTEXT;
  if (current() == context) depth--;
  for (int i = 0; i < DEEPEST; i++)
    if (made[i] == context) made[i] = 0;
  return OK;
}

int cuCtxSynchronize(void) { NEED_CONTEXT; MAY_FAIL; return OK; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  NEED_CONTEXT;
  pthread_mutex_lock(&lock);
  *total = TOTAL_BYTES, *free_bytes = TOTAL_BYTES - used();
  pthread_mutex_unlock(&lock);
  return OK;
}

/* -- legacy ------------------------------------------------------------------------------------------------------- */

static int allocate(u64 *address, size_t size) {
  char path[512];
  int fd = take("raw", size, path, sizeof path);
  if (fd < 0) return OUT_OF_MEMORY;
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  Held *made = add(*address = (u64)at, size, fd);
  strcpy(made->path, path);
  return OK;
}
int cuMemAlloc_v2(u64 *address, size_t size) { NEED_CONTEXT; return LOCKED(allocate(address, size)); }

static int give_back(u64 address) {
  Held *it = find(address);
  if (!it || !*it->path) return INVALID_VALUE;
  munmap((void *)address, it->size), unlink(it->path), drop(it);
  return OK;
}
int cuMemFree_v2(u64 address) { NEED_CONTEXT; return LOCKED(give_back(address)); }

static int ipc_handle(IpcHandle *handle, u64 address) {
  Held *it = find(address);
  if (!it || !*it->path) return INVALID_VALUE;
  memset(handle, 0, sizeof *handle);
  snprintf(handle->reserved, sizeof *handle, "stub%s", strstr(it->path, "memory."));
  return OK;
}
int cuIpcGetMemHandle(IpcHandle *handle, u64 address) { NEED_CONTEXT; return LOCKED(ipc_handle(handle, address)); }

static int ipc_open(u64 *address, IpcHandle handle) {
  char path[1024], own[64];
  struct stat status;
  for (int i = 0; i < MOST; i++)
    if (held[i].name && held[i].opens && !memcmp(held[i].handle, handle.reserved, 64))
      return held[i].opens++, *address = held[i].name, OK;
  if (strncmp(handle.reserved, "stubmemory.raw.", 15)) return INVALID_HANDLE;
  snprintf(own, sizeof own, "stubmemory.raw.%d.", getpid());
  if (!strncmp(handle.reserved, own, strlen(own))) return INVALID_CONTEXT;
  snprintf(path, sizeof path, "%s/%.59s", folder(), handle.reserved + 4);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status)) return INVALID_HANDLE;
  void *at = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd); /* it is no holder: what the exporter frees is gone */
  Held *made = add(*address = (u64)at, status.st_size, -1);
  made->opens = 1, memcpy(made->handle, handle.reserved, 64);
  return OK;
}
int cuIpcOpenMemHandle_v2(u64 *address, IpcHandle handle, unsigned flags) {
  NEED_CONTEXT;
  MAY_FAIL;
  return flags == 1 ? LOCKED(ipc_open(address, handle)) : INVALID_VALUE;
}

static int ipc_close(u64 address) {
  Held *it = find(address);
  if (!it || !it->opens) return INVALID_VALUE;
  if (--it->opens == 0) munmap((void *)address, it->size), drop(it);
  return OK;
}
int cuIpcCloseMemHandle(u64 address) { NEED_CONTEXT; return LOCKED(ipc_close(address)); }

/* -- virtual memory management ------------------------------------------------------------------------------------ */

static int fits(const Property *wanted) {
  return wanted->type == 1 && wanted->handle_types == 1 && wanted->location.type == 1 && wanted->location.id == 0;
}
int cuMemGetAllocationGranularity(size_t *bytes, const Property *wanted, int kind) {
  return *bytes = GRANULARITY, fits(wanted) && kind == 0 ? OK : INVALID_VALUE;
}

static int vmm_create(u64 *handle, size_t size) {
  char path[512];
  int fd = take("vmm", size, path, sizeof path);
  if (fd < 0) return OUT_OF_MEMORY;
  return add(*handle = 0x1000000 + numbers, size, fd), OK;
}
int cuMemCreate(u64 *handle, size_t size, const Property *wanted, u64 flags) {
  return fits(wanted) && size % GRANULARITY == 0 && !flags ? LOCKED(vmm_create(handle, size)) : INVALID_VALUE;
}

static int vmm_export(int *fd, u64 handle) {
  Held *it = find(handle);
  return it ? (*fd = fcntl(it->fd, F_DUPFD_CLOEXEC, 3), OK) : INVALID_VALUE;
}
int cuMemExportToShareableHandle(void *fd, u64 handle, int kind, u64 flags) {
  return kind == 1 && !flags ? LOCKED(vmm_export(fd, handle)) : INVALID_VALUE;
}

static int vmm_import(u64 *handle, int fd) {
  char path[64], real[512] = "";
  struct stat status;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (readlink(path, real, sizeof real - 1) < 0 || !strstr(real, "memory.vmm.")) return INVALID_VALUE;
  int own = open(path, O_RDWR | O_CLOEXEC);
  if (own < 0 || flock(own, LOCK_SH) || fstat(own, &status)) return INVALID_VALUE;
  return add(*handle = 0x1000000 + ++numbers, status.st_size, own), OK;
}
int cuMemImportFromShareableHandle(u64 *handle, void *fd, int kind) {
  NEED_CONTEXT;
  MAY_FAIL;
  return kind == 1 ? LOCKED(vmm_import(handle, (int)(long)fd)) : INVALID_VALUE;
}

static int vmm_release(u64 handle) {
  Held *it = find(handle);
  return it ? (drop(it), OK) : INVALID_VALUE;
}
int cuMemRelease(u64 handle) { return LOCKED(vmm_release(handle)); }

int cuMemAddressReserve(u64 *address, size_t size, size_t alignment, u64 wished, u64 flags) {
  if (size % GRANULARITY || alignment || wished || flags) return INVALID_VALUE;
  void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *address = (u64)at, at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
int cuMemAddressFree(u64 address, size_t size) { return munmap((void *)address, size) ? INVALID_VALUE : OK; }

static int vmm_map(u64 address, size_t size, u64 handle) {
  Held *it = find(handle);
  if (!it || it->size != size) return INVALID_VALUE;
  if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, it->fd, 0) == MAP_FAILED) return INVALID_VALUE;
  return add(address, size, dup(it->fd)), OK; /* the mapping is a holder of its own */
}
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
  NEED_CONTEXT;
  MAY_FAIL;
  return offset || flags ? INVALID_VALUE : LOCKED(vmm_map(address, size, handle));
}

static int vmm_unmap(u64 address, size_t size) {
  Held *it = find(address);
  if (!it || it->size != size) return INVALID_VALUE;
  mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return drop(it), OK;
}
int cuMemUnmap(u64 address, size_t size) { NEED_CONTEXT; return LOCKED(vmm_unmap(address, size)); }

int cuMemSetAccess(u64 address, size_t size, const Access *wanted, size_t count) {
  NEED_CONTEXT;
  MAY_FAIL;
  if (count != 1 || wanted->location.type != 1 || wanted->location.id) return INVALID_VALUE;
  if (wanted->flags != 1 && wanted->flags != 3) return INVALID_VALUE;
  int how = PROT_READ | (wanted->flags == 3 ? PROT_WRITE : 0);
  return mprotect((void *)address, size, how) ? INVALID_VALUE : OK;
}

/* -- moving ------------------------------------------------------------------------------------------------------- */

static int host_allocate(void **address, size_t size) {
  *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return add((u64)*address, size, -1), OK;
}
int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  NEED_CONTEXT;
  return flags ? INVALID_VALUE : LOCKED(host_allocate(address, size));
}

static int host_free(void *address) {
  Held *it = find((u64)address);
  if (!it) return INVALID_VALUE;
  return munmap(address, it->size), drop(it), OK;
}
int cuMemFreeHost(void *address) { NEED_CONTEXT; return LOCKED(host_free(address)); }

int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  NEED_CONTEXT;
  MAY_FAIL;
  return flags == 8 && (u64)address % 4096 == 0 && size % 4096 == 0 ? OK : INVALID_VALUE;
}
int cuMemHostUnregister(void *address) { NEED_CONTEXT; return address ? OK : INVALID_VALUE; }
int cuStreamCreate(void **stream, unsigned flags) {
  NEED_CONTEXT;
  return *stream = malloc(1), flags == 1 ? OK : INVALID_VALUE;
}
int cuStreamDestroy_v2(void *stream) { NEED_CONTEXT; return free(stream), OK; }
int cuStreamSynchronize(void *stream) { NEED_CONTEXT; MAY_FAIL; return stream ? OK : INVALID_VALUE; }

static int copy(void *target, const void *source, size_t size, void *stream) {
  NEED_CONTEXT;
  return stream ? (memcpy(target, source, size), OK) : INVALID_VALUE;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t n, void *stream) { return copy((void *)to, from, n, stream); }
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t n, void *stream) { return copy(to, (void *)from, n, stream); }
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t n, void *stream) { return copy((void *)to, (void *)from, n, stream); }

int cuMemsetD8Async(u64 to, unsigned char value, size_t n, void *stream) {
  (void)stream;
  memset((void *)to, value, n);
  return OK;
}

/* -- computing ---------------------------------------------------------------------------------------------------- */

int cuModuleLoadData(void **module, const char *program) {
  NEED_CONTEXT;
  MAY_FAIL;
  return *module = (void *)1, strstr(program, ".target sm_80") ? OK : INVALID_VALUE;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  NEED_CONTEXT;
  *function = !strcmp(name, "plain") ? (void *)1 : (void *)2;
  return module == (void *)1 && (*function == (void *)1 || !strcmp(name, "products")) ? OK : NOT_FOUND;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **values, void **extra) {
  NEED_CONTEXT;
  MAY_FAIL;
  if (!stream || y != 1 || z != 1 || ty != 1 || tz != 1 || shared || extra || threads % 32) return INVALID_VALUE;
  u64 *given[5];
  memcpy(given, values, sizeof given);
  Arguments arguments = {(void *)*given[0], *given[1], *given[2], (void *)*given[3], (void *)*given[4]};
  return run_kernel(function == (void *)1, x, threads, arguments), OK;
}

/* -- how they are found ------------------------------------------------------------------------------------------- */

#define CALL(name, version) {#name, (void *)name##version}
static const struct { const char *name; void *call; } CALLS[] = {
  CALL(cuInit, ), CALL(cuGetErrorName, ), CALL(cuDriverGetVersion, ), CALL(cuDeviceGetCount, ), CALL(cuDeviceGet, ), CALL(cuDeviceGetUuid, _v2),
  CALL(cuDeviceTotalMem, _v2), CALL(cuDeviceCanAccessPeer, ), CALL(cuDeviceGetName, ), CALL(cuDeviceGetAttribute, ),
  CALL(cuDevicePrimaryCtxRetain, ), CALL(cuDevicePrimaryCtxRelease, _v2), CALL(cuDevicePrimaryCtxGetState, ),
  CALL(cuCtxSetCurrent, ), CALL(cuCtxGetCurrent, ), CALL(cuCtxPushCurrent, _v2), CALL(cuCtxPopCurrent, _v2),
  CALL(cuCtxCreate, _v4), CALL(cuCtxDestroy, _v2), CALL(cuCtxSynchronize, ), CALL(cuMemGetInfo, _v2), CALL(cuMemAlloc, _v2), CALL(cuMemFree, _v2),
  CALL(cuIpcGetMemHandle, ), CALL(cuIpcOpenMemHandle, _v2), CALL(cuIpcCloseMemHandle, ),
  CALL(cuMemGetAllocationGranularity, ), CALL(cuMemCreate, ), CALL(cuMemExportToShareableHandle, ),
  CALL(cuMemImportFromShareableHandle, ), CALL(cuMemRelease, ), CALL(cuMemAddressReserve, ), CALL(cuMemAddressFree, ),
  CALL(cuMemMap, ), CALL(cuMemUnmap, ), CALL(cuMemSetAccess, ), CALL(cuMemHostAlloc, ), CALL(cuMemFreeHost, ),
  CALL(cuMemHostRegister, _v2), CALL(cuMemHostUnregister, ), CALL(cuStreamCreate, ), CALL(cuStreamDestroy, _v2),
  CALL(cuStreamSynchronize, ), CALL(cuMemcpyHtoDAsync, _v2), CALL(cuMemcpyDtoHAsync, _v2),
  CALL(cuMemcpyDtoDAsync, _v2), CALL(cuMemsetD8Async, ), CALL(cuModuleLoadData, ), CALL(cuModuleGetFunction, ),
  CALL(cuLaunchKernel, ),
};

int cuGetProcAddress_v2(const char *name, void **call, int version, u64 flags, int *status) {
  (void)flags;
  *call = NULL;
  for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
    if (!strcmp(name, CALLS[i].name)) *call = CALLS[i].call;
  if (!strcmp(name, "cuCtxCreate") && version < 12050) *call = (void *)cuCtxCreate_v2;
  if (!strcmp(name, "cuGetProcAddress")) *call = (void *)cuGetProcAddress_v2;
  if (status) *status = *call ? 0 : 1;
  return *call ? OK : NOT_FOUND;
}

/* -- the management library --------------------------------------------------------------------------------------- */

typedef struct { u64 total, free, used; } Memory;
int nvmlInit_v2(void) { return folder() ? 0 : 9; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "an error of the stub"; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) { return *device = (void *)1, number ? 2 : 0; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *found) {
  (void)device;
  pthread_mutex_lock(&lock);
  found->total = TOTAL_BYTES, found->used = used(), found->free = found->total - found->used;
  pthread_mutex_unlock(&lock);
  return 0;
}
int nvmlDeviceGetUUID(void *device, char *room, unsigned size) {
  (void)device;
  return snprintf(room, size, "GPU-abcdef01-0203-0405-0607-08090a0b0c0d"), 0;
}
int nvmlDeviceGetName(void *device, char *room, unsigned size) {
  return (void)device, snprintf(room, size, "Stub Device"), 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) { return (void)device, *now = *later = 0, 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
  return (void)device, (void)processes, *count = 0, 0; /* it says of none what it uses */
}
int nvmlSystemGetDriverVersion(char *room, unsigned size) { return snprintf(room, size, "999.0"), 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { return *version = 13000, 0; }
