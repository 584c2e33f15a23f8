// The kernels of the benchmarks, as one would write them in CUDA C++.
#define T 16

extern "C" __global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float as[T][T], bs[T][T];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
    float acc = 0.f;
    for (int k = 0; k < n; k += T) {
        as[ty][tx] = a[row * n + k + tx];
        bs[ty][tx] = b[(k + ty) * n + col];
        __syncthreads();
        for (int j = 0; j < T; j++) acc += as[ty][j] * bs[j][tx];
        __syncthreads();
    }
    c[row * n + col] = acc;
}

extern "C" __global__ void reduce(const float *x, float *out, int n) {
    __shared__ float s[32];
    float v = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) v += x[i];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(~0u, v, d);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) s[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < (blockDim.x >> 5) ? s[lane] : 0.f;
        for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(~0u, v, d);
        if (lane == 0) out[blockIdx.x] = v;
    }
}

extern "C" __global__ void nbody(const float4 *p, float4 *acc, int n) {
    __shared__ float4 sp[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = p[i];
    float ax = 0.f, ay = 0.f, az = 0.f;
    for (int t = 0; t < n; t += blockDim.x) {
        sp[threadIdx.x] = p[t + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < blockDim.x; j++) {
            float4 q = sp[j];
            float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;
            float inv = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
            float f = q.w * inv * inv * inv;
            ax += dx * f;
            ay += dy * f;
            az += dz * f;
        }
        __syncthreads();
    }
    acc[i] = make_float4(ax, ay, az, 0.f);
}

extern "C" __global__ void mandelbrot(int *out, int w, int h, int most) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float cx = -2.f + 3.f * x / w, cy = -1.f + 2.f * y / h, zx = 0.f, zy = 0.f;
    int i = 0;
    while (i < most && zx * zx + zy * zy < 4.f) {
        float t = zx * zx - zy * zy + cx;
        zy = 2.f * zx * zy + cy;
        zx = t;
        i++;
    }
    out[y * w + x] = i;
}

extern "C" __global__ void stencil(const float *u, float *v, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x > 0 && x < w - 1 && y > 0 && y < h - 1)
        v[y * w + x] = 0.2f * (u[y * w + x] + u[y * w + x - 1] + u[y * w + x + 1] + u[(y - 1) * w + x] + u[(y + 1) * w + x]);
}
