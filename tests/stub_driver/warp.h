/* Runs a kernel of trims/memory/cuda/checksum.cu on a processor: the 32 lanes of a warp are coroutines that meet where
 * lanes exchange values. Not covered: order of memory, and how fast a device is. */
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef unsigned long long u64;
typedef unsigned int u32;
typedef struct { u32 x, y, z, w; } uint4;
typedef struct { unsigned x; } Index;
#define KERNEL static void
#define INLINE static inline
#define LANES 32
#define STACK_BYTES (64 << 10)

static _Thread_local Index threadIdx, blockIdx, blockDim, gridDim;
static _Thread_local struct {
  ucontext_t lane[LANES], scheduler;
  u32 running, meetings[LANES];
  u64 given[2][LANES][6];
} warp;

/* Wait until every lane has given its values; return all of them. A lane may be one meeting ahead, and no more. */
static u64 (*meet(const u64 *values, int count))[6] {
  u32 me = warp.running, turn = warp.meetings[me]++ % 2;
  memcpy(warp.given[turn][me], values, count * sizeof *values);
  swapcontext(&warp.lane[me], &warp.scheduler);
  return warp.given[turn];
}

static inline u64 exchanged(u64 value, u32 from) {
  u64 own = value;
  return meet(&own, 1)[from < LANES ? from : warp.running][0];
}
#define __shfl_sync(mask, value, from) exchanged(value, (from) % LANES)
#define __shfl_down_sync(mask, value, by) exchanged(value, warp.running + (by))
#define atomicAdd(at, value) __atomic_fetch_add(at, value, __ATOMIC_RELAXED)

static inline int __dp4a(int a, int b, int c) {
  for (int byte = 0; byte < 4; byte++) c += (signed char)(a >> 8 * byte) * (signed char)(b >> 8 * byte);
  return c;
}

/* mma.m16n8k32, s8 times s8, as the PTX manual has it ("Matrix Fragments for mma.m16n8k32"): with g = lane / 4 and
 * t = lane % 4, byte i of a lane's 16 of A is that of row g, or g + 8 where i is 4 to 7 or 12 to 15, and column
 * 4 t + i % 4, or 16 more where i is 8 or more; byte i of its 8 of B is that of row 4 t + i % 4, or 16 more where i is
 * 4 or more, and column g; number i of its 4 of C is that of row g, or g + 8 where i is 2 or 3, and column 2 t + i % 2. */
static inline void mma_m16n8k32(int y[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  u64 mine[6] = {a0, a1, a2, a3, b0, b1};
  u32 me = warp.running;
  u64(*all)[6] = meet(mine, 6);
  signed char a[16][32], b[32][8];
  for (int lane = 0; lane < LANES; lane++) {
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 16; i++)
      a[i < 4 || (i >= 8 && i < 12) ? g : g + 8][4 * t + i % 4 + (i >= 8 ? 16 : 0)] = all[lane][i / 4] >> 8 * (i % 4);
    for (int i = 0; i < 8; i++) b[4 * t + i % 4 + (i >= 4 ? 16 : 0)][g] = all[lane][4 + i / 4] >> 8 * (i % 4);
  }
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 32; k++) y[i] += a[me / 4 + (i >= 2 ? 8 : 0)][k] * b[k][2 * (me % 4) + i % 2];
}

#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "../../trims/memory/cuda/checksum.cu"

typedef struct { const uint4 *data; u64 groups, first_row; const u32 *table; u64 *total; } Arguments;
static _Thread_local Arguments given;
static _Thread_local int is_plain;

static void lane_main(void) {
  if (is_plain) plain(given.data, given.groups, given.first_row, given.table, given.total);
  else products(given.data, given.groups, given.first_row, given.table, given.total);
}

static void run_warp(char *stacks) {
  int left = LANES, ended[LANES] = {0};
  for (int lane = 0; lane < LANES; lane++) {
    warp.meetings[lane] = 0;
    getcontext(&warp.lane[lane]);
    warp.lane[lane].uc_stack.ss_sp = stacks + lane * STACK_BYTES;
    warp.lane[lane].uc_stack.ss_size = STACK_BYTES;
    warp.lane[lane].uc_link = &warp.scheduler;
    makecontext(&warp.lane[lane], lane_main, 0);
  }
  u32 first = threadIdx.x;
  while (left)
    for (int lane = 0; lane < LANES; lane++)
      if (!ended[lane]) {
        u32 before = warp.meetings[lane];
        warp.running = lane, threadIdx.x = first + lane;
        swapcontext(&warp.scheduler, &warp.lane[lane]);
        if (warp.meetings[lane] == before) ended[lane] = 1, left--;
      }
  threadIdx.x = first;
}

/* Run a kernel: one warp after the other. */
static void run_kernel(int plain_one, unsigned blocks, unsigned threads, Arguments arguments) {
  char *stacks = malloc(LANES * STACK_BYTES);
  given = arguments, is_plain = plain_one;
  gridDim.x = blocks, blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x += LANES) run_warp(stacks);
  free(stacks);
}
