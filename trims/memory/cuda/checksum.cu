// Sums of an image's checksum (trims/memory/row_sums.py) over whole groups of 16 rows of 1024 bytes, by two ways.
//
// `plain` multiplies and adds on the ordinary cores, `products` on the tensor cores. Both read each byte once and add
// their sum, modulo 2^64, to *total. A warp takes every n-th group. `table` is W by column: 4 columns of 1024 bytes.
//
// `make kernels` translates it to checksum.ptx, which drivers translate for their device. tests/stub_driver runs it on a
// processor.

typedef unsigned long long u64;
typedef unsigned int u32;

#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define INLINE __device__ __forceinline__
#endif
#define ALL 0xffffffffu

// M of trims/memory/row_sums.py: splitmix64 of the argument, made odd.
INLINE u64 multiplier(u64 argument) {
  u64 x = (argument + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return (x ^ (x >> 31)) | 1;
}

// Add the sums of a warp's lanes to the total.
INLINE void add_up(u64 sum, u32 lane, u64 *total) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(ALL, sum, step);
  if (lane == 0) atomicAdd(total, sum);
}

// Lane t has bytes 16 t to 16 t + 15 of each half of a row, and their part of W in registers.
KERNEL plain(const uint4 *data, u64 groups, u64 first_row, const u32 *table, u64 *total) {
  u32 lane = threadIdx.x % 32;
  u64 warps = (u64)gridDim.x * blockDim.x / 32, sum = 0;
  int w[4][8];
#pragma unroll
  for (int column = 0; column < 4; column++)
#pragma unroll
    for (int word = 0; word < 8; word++)
      w[column][word] = (int)table[256 * column + 128 * (word / 4) + 4 * lane + word % 4];
  for (u64 group = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; group < groups; group += warps) {
    u64 row = 16 * group;
    for (int eight = 0; eight < 2; eight++) {
      u64 mine = multiplier(4 * (first_row + row + 8 * eight) + lane);
#pragma unroll 2
      for (int r = 0; r < 8; r++) {
        const uint4 *at = data + 64 * (row + 8 * eight + r) + lane;
        uint4 a = at[0], b = at[32];
#pragma unroll
        for (int column = 0; column < 4; column++) {
          int y = __dp4a((int)a.x, w[column][0], 0);
          y = __dp4a((int)a.y, w[column][1], y);
          y = __dp4a((int)a.z, w[column][2], y);
          y = __dp4a((int)a.w, w[column][3], y);
          y = __dp4a((int)b.x, w[column][4], y);
          y = __dp4a((int)b.y, w[column][5], y);
          y = __dp4a((int)b.z, w[column][6], y);
          y = __dp4a((int)b.w, w[column][7], y);
          sum += (u64)(long long)y * __shfl_sync(ALL, mine, 4 * r + column);
        }
      }
    }
  }
  add_up(sum, lane, total);
}

// 16 rows times 32 bytes, by W of 32 bytes times 8 columns. Registers are as the PTX manual has them for m16n8k32.
INLINE void product(int y[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(y[0]), "+r"(y[1]), "+r"(y[2]), "+r"(y[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  mma_m16n8k32(y, a0, a1, a2, a3, b0, b1);
#endif
}

// A product may take the bytes of a row in any order, if W has them in the same one: so each lane reads 16 bytes at
// once, lane t those from 64 k + 16 (t % 4) of the rows t / 4 and t / 4 + 8, and two products take 8 of them each.
// Columns 4 to 7 of the tensor cores' 8 are zeros.
KERNEL products(const uint4 *data, u64 groups, u64 first_row, const u32 *table, u64 *total) {
  u32 lane = threadIdx.x % 32, column = lane / 4, quarter = lane % 4;
  u64 warps = (u64)gridDim.x * blockDim.x / 32, sum = 0;
  u32 w[16][4];
#pragma unroll
  for (int k = 0; k < 16; k++)
#pragma unroll
    for (int word = 0; word < 4; word++)
      w[k][word] = column < 4 ? table[256 * (column % 4) + 16 * k + 4 * quarter + word] : 0;
  for (u64 group = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; group < groups; group += warps) {
    const uint4 *upper = data + 64 * (16 * group + lane / 4) + quarter, *lower = upper + 64 * 8;
    int y[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 16; k++) {
      uint4 a = upper[4 * k], b = lower[4 * k];
      product(y, a.x, b.x, a.y, b.y, w[k][0], w[k][1]);
      product(y, a.z, b.z, a.w, b.w, w[k][2], w[k][3]);
    }
    if (quarter < 2) {  // this lane has the columns 2 t and 2 t + 1 of its two rows
      u64 first = 4 * (first_row + 16 * group + lane / 4) + 2 * quarter;
      sum += (u64)(long long)y[0] * multiplier(first) + (u64)(long long)y[1] * multiplier(first + 1);
      sum += (u64)(long long)y[2] * multiplier(first + 32) + (u64)(long long)y[3] * multiplier(first + 33);
    }
  }
  add_up(sum, lane, total);
}
