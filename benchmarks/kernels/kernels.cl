// The same kernels, written by hand in OpenCL C for its CPU devices.
#pragma OPENCL FP_CONTRACT OFF
#define T 16

__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n) {
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i];
}

__kernel void matmul(__global const float *a, __global const float *b, __global float *c, int n) {
    __local float as[T][T], bs[T][T];
    int tx = get_local_id(0), ty = get_local_id(1), row = get_global_id(1), col = get_global_id(0);
    float acc = 0.f;
    for (int k = 0; k < n; k += T) {
        as[ty][tx] = a[row * n + k + tx];
        bs[ty][tx] = b[(k + ty) * n + col];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = 0; j < T; j++) acc += as[ty][j] * bs[j][tx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * n + col] = acc;
}

__kernel void reduce(__global const float *x, __global float *out, int n) {
    __local float s[256];
    int l = get_local_id(0);
    float v = 0.f;
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) v += x[i];
    s[l] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int d = get_local_size(0) / 2; d > 0; d >>= 1) {
        if (l < d) s[l] += s[l + d];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (l == 0) out[get_group_id(0)] = s[0];
}

__kernel void nbody(__global const float4 *p, __global float4 *acc, int n) {
    __local float4 sp[256];
    int i = get_global_id(0), l = get_local_id(0);
    float4 me = p[i];
    float ax = 0.f, ay = 0.f, az = 0.f;
    for (int t = 0; t < n; t += 256) {
        sp[l] = p[t + l];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = 0; j < 256; j++) {
            float4 q = sp[j];
            float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;
            float inv = rsqrt(dx * dx + dy * dy + dz * dz + 1e-3f);
            float f = q.w * inv * inv * inv;
            ax += dx * f;
            ay += dy * f;
            az += dz * f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc[i] = (float4)(ax, ay, az, 0.f);
}

__kernel void mandelbrot(__global int *out, int w, int h, int most) {
    int x = get_global_id(0), y = get_global_id(1);
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

__kernel void stencil(__global const float *u, __global float *v, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x > 0 && x < w - 1 && y > 0 && y < h - 1)
        v[y * w + x] = 0.2f * (u[y * w + x] + u[y * w + x - 1] + u[y * w + x + 1] + u[(y - 1) * w + x] + u[(y + 1) * w + x]);
}
